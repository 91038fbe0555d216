// Where the sums of second values begin, behind the others, in dispatches that store them, too.
const SECONDS = QUADS * 4u * STORES_VALUES;

// One invocation: 4 rows of one head. For each 4 columns it makes the weights anew from the scores and the saved
// logarithms, and adds up the columns' values so weighted. STORES_VALUES: and second values, weighted by P alone.
fn unit(u: u32) {
    let head = u % OWN_HEADS;
    let first = u / OWN_HEADS * 4u;
    let rows = min(first + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(OWN_ROWS - 1u));
    for (var i = 0u; i < QUADS * 4u + SECONDS; i++) {
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
            let at = ((first + r) * OWN_HEADS + head) * D + c;
            let sum = c / 4u * 4u + r;
            store(at, sums[sum * LANES + own][c % 4u] * FINAL);
            if (STORES_VALUES == 1u) {
                store_values(at, sums[(SECONDS + sum) * LANES + own][c % 4u]);
            }
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
    let p0 = shares(rows.x, head, column, other, scores[0]);
    let p1 = shares(rows.y, head, column, other, scores[1]);
    let p2 = shares(rows.z, head, column, other, scores[2]);
    let p3 = shares(rows.w, head, column, other, scores[3]);
    let w0 = weights(rows.x, head, column, other, p0, seconds[0]);
    let w1 = weights(rows.y, head, column, other, p1, seconds[1]);
    let w2 = weights(rows.z, head, column, other, p2, seconds[2]);
    let w3 = weights(rows.w, head, column, other, p3, seconds[3]);
    let sees = Seeing(sees4(rows.x, column), sees4(rows.y, column), sees4(rows.z, column), sees4(rows.w, column));
    add_values(0u, columns, other, mat4x4<f32>(w0, w1, w2, w3), sees, false);
    if (STORES_VALUES == 1u) {
        add_values(SECONDS, columns, other, mat4x4<f32>(p0, p1, p2, p3), sees, true);
    }
}

// Adds the values of 4 columns, or the `second` ones, to the sums from `first` on.
fn add_values(first: u32, columns: vec4<u32>, other: u32, weights: mat4x4<f32>, sees: Seeing, second: bool) {
    let whole = sees_all(sees);
    for (var c = 0u; c < D; c += 4u) {
        let four = mat4x4<f32>(
            either4(columns.x, other, c, second),
            either4(columns.y, other, c, second),
            either4(columns.z, other, c, second),
            either4(columns.w, other, c, second),
        );
        let more = weighted(four, weights, sees, whole);
        sums[(first + c) * LANES + own] += more[0];
        sums[(first + c + 1u) * LANES + own] += more[1];
        sums[(first + c + 2u) * LANES + own] += more[2];
        sums[(first + c + 3u) * LANES + own] += more[3];
    }
}

fn either4(column: u32, head: u32, c: u32, second: bool) -> vec4<f32> {
    if (second) {
        return second_value4(column, head, c);
    }
    return value4(column, head, c);
}

fn sees4(row: u32, column: u32) -> vec4<bool> {
    let columns = column + vec4<u32>(0u, 1u, 2u, 3u);
    return (columns >= vec4<u32>(first_column(row))) & (columns < vec4<u32>(end_column(row)));
}
