// A row of WIDTH elements, kept in registers: the sum of squares, then every element. It is read once.
fn unit(row: u32, part: u32, live: bool) {
    for (var e = 0u; e < EACH; e++) {
        let q_e = row * QUADS + min(part + e * LANES, QUADS - 1u);
        var x_e = x_four(q_e * 4u);
    }
    var fours = vec4<f32>();
    for (var e = 0u; e < EACH; e++) {
        fours += select(vec4<f32>(), x_e * x_e, part + e * LANES < QUADS);
    }
    let size = inverseSqrt(sum_of_unit(sum_of_four(fours)) / f32(WIDTH) + EPS);
    if (live && part == 0u) {
        store_size(row, size);
    }
    for (var e = 0u; e < EACH; e++) {
        if (live && part + e * LANES < QUADS) {
            store4(q_e * 4u, x_e * size * w_four((q_e - row * QUADS) * 4u));
        }
    }
}
