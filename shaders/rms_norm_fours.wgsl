// A row of WIDTH elements, four at a time: the sum of squares, then every element. It is read twice.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    var fours = vec4<f32>();
    for (var q = part; q < QUADS; q += LANES) {
        let x = x_four(first + q * 4u);
        fours += x * x;
    }
    let size = inverseSqrt(sum_of_unit(sum_of_four(fours)) / f32(WIDTH) + EPS);
    if (live && part == 0u) {
        store_size(row, size);
    }
    if (live) {
        for (var q = part; q < QUADS; q += LANES) {
            store4(first + q * 4u, x_four(first + q * 4u) * size * w_four(q * 4u));
        }
    }
}
