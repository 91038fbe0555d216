// A row of x and of labels, WIDTH elements each, kept in registers: the maximum of x, the sum of e^(x - maximum) and that
// of the labels, then every element. Each is read once.
fn unit(row: u32, part: u32, live: bool) {
    for (var e = 0u; e < EACH; e++) {
        let q_e = row * QUADS + min(part + e * LANES, QUADS - 1u);
        var x_e = x_four(q_e * 4u);
        var l_e = labels_four(q_e * 4u);
    }
    var highest = x_0;
    var bits = vec4<u32>();
    for (var e = 0u; e < EACH; e++) {
        highest = max(highest, x_e);
        bits = max(bits, bitcast<vec4<u32>>(x_e) & vec4<u32>(0x7fffffffu));
    }
    let top = max_of_unit(highest_of(highest, bits));
    var fours = vec4<f32>();
    var labels = vec4<f32>();
    for (var e = 0u; e < EACH; e++) {
        x_e = exp(x_e - top);
        fours += select(vec4<f32>(), x_e, part + e * LANES < QUADS);
        labels += select(vec4<f32>(), l_e, part + e * LANES < QUADS);
    }
    let total = sum_of_unit(sum_of_four(fours));
    let factor = lost(top, sum_of_unit(sum_of_four(labels)) / total);
    for (var e = 0u; e < EACH; e++) {
        if (live && part + e * LANES < QUADS) {
            store4(q_e * 4u, x_e * factor - l_e);
        }
    }
}
