// Up to four rows of x times one row of a matrix that lies in codes: each code is decoded once and meets every row.
fn four_rows(first: u32, k: u32) -> vec4<f32> {
    if (ROWS == 1u) {
        return vec4<f32>(x_at(k), 0.0, 0.0, 0.0);
    }
    let last = ROWS - 1u;
    return vec4<f32>(
        x_at(first * K + k),
        x_at(min(first + 1u, last) * K + k),
        x_at(min(first + 2u, last) * K + k),
        x_at(min(first + 3u, last) * K + k),
    );
}

fn unit(u: u32, part: u32, live: bool) {
    let first = u / N * 4u;
    let n = u % N;
    var total = vec4<f32>();
    for (var k = part; k < K; k += LANES) {
        total += four_rows(first, k) * weight(n, k);
    }
    for (var r = 0u; r < min(ROWS, 4u); r++) {
        let sum = sum_of_unit(total[r]);
        if (live && part == 0u && first + r < ROWS) {
            store((first + r) * N + n, sum);
        }
    }
}
