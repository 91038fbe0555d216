// One invocation: 4 rows of one head. For each 4 columns it makes the weights anew from the scores and the saved
// logarithms, and adds up the columns' values so weighted.
fn unit(u: u32) {
    let head = u % OWN_HEADS;
    let first = u / OWN_HEADS * 4u;
    let rows = min(first + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(OWN_ROWS - 1u));
    for (var i = 0u; i < QUADS * 4u; i++) {
        sums[i * LANES + own] = vec4<f32>();
    }
    let end = end_column(rows.w);
    for (var other = first_head(head); other < end_head(head); other++) {
        for (var column = first_column(rows.x); column < end; column += 4u) {
            let columns = min(column + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(COLUMNS - 1u));
            add(rows, head, column, columns, other);
        }
    }
    for (var r = 0u; r < min(4u, OWN_ROWS - first); r++) {
        for (var c = 0u; c < D; c++) {
            store(((first + r) * OWN_HEADS + head) * D + c, sums[(c / 4u * 4u + r) * LANES + own][c % 4u] * FINAL);
        }
    }
}

fn add(rows: vec4<u32>, head: u32, column: u32, columns: vec4<u32>, other: u32) {
    let scores = scores4(rows, head, columns, other);
    var seconds = mat4x4<f32>();
    if (SECOND == 1u) {
        for (var c = 0u; c < D; c += 4u) {
            let four = mat4x4<f32>(
                second_column4(columns.x, other, c),
                second_column4(columns.y, other, c),
                second_column4(columns.z, other, c),
                second_column4(columns.w, other, c),
            );
            seconds += mat4x4<f32>(
                second_row4(rows.x, head, c) * four,
                second_row4(rows.y, head, c) * four,
                second_row4(rows.z, head, c) * four,
                second_row4(rows.w, head, c) * four,
            );
        }
    }
    let w0 = weights(rows.x, head, column, other, scores[0], seconds[0]);
    let w1 = weights(rows.y, head, column, other, scores[1], seconds[1]);
    let w2 = weights(rows.z, head, column, other, scores[2], seconds[2]);
    let w3 = weights(rows.w, head, column, other, scores[3], seconds[3]);
    let all4 = mat4x4<f32>(w0, w1, w2, w3);
    let sees = Seeing(sees4(rows.x, column), sees4(rows.y, column), sees4(rows.z, column), sees4(rows.w, column));
    let whole = sees_all(sees);
    for (var c = 0u; c < D; c += 4u) {
        let four = mat4x4<f32>(
            value4(columns.x, other, c),
            value4(columns.y, other, c),
            value4(columns.z, other, c),
            value4(columns.w, other, c),
        );
        let more = weighted(four, all4, sees, whole);
        sums[c * LANES + own] += more[0];
        sums[(c + 1u) * LANES + own] += more[1];
        sums[(c + 2u) * LANES + own] += more[2];
        sums[(c + 3u) * LANES + own] += more[3];
    }
}

fn sees4(row: u32, column: u32) -> vec4<bool> {
    let columns = column + vec4<u32>(0u, 1u, 2u, 3u);
    return (columns >= vec4<u32>(first_column(row))) & (columns < vec4<u32>(end_column(row)));
}
