// A row of x and of h = g * w, WIDTH elements each, kept in registers: the sums of x^2 and of x * h, then every element.
// Each is read once.
fn unit(row: u32, part: u32, live: bool) {
    for (var e = 0u; e < EACH; e++) {
        let q_e = row * QUADS + min(part + e * LANES, QUADS - 1u);
        var x_e = x_four(q_e * 4u);
        var h_e = g_four(q_e * 4u) * w_four((q_e - row * QUADS) * 4u);
    }
    var fours = vec4<f32>();
    for (var e = 0u; e < EACH; e++) {
        fours += select(vec4<f32>(), x_e * x_e, part + e * LANES < QUADS);
    }
    let size = inverseSqrt(sum_of_unit(sum_of_four(fours)) / f32(WIDTH) + EPS);
    var products = vec4<f32>();
    for (var e = 0u; e < EACH; e++) {
        products += select(vec4<f32>(), x_e * h_e, part + e * LANES < QUADS);
    }
    let shared_part = sum_of_unit(sum_of_four(products)) / f32(WIDTH) * size * size;
    for (var e = 0u; e < EACH; e++) {
        if (live && part + e * LANES < QUADS) {
            store4(q_e * 4u, (h_e - x_e * shared_part) * size);
        }
    }
}
