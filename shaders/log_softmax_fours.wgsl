// A row of WIDTH elements, four at a time: its maximum, the sum of e^(x - maximum), then x - maximum - ln(sum). It is read
// three times.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    var highest = x_four(first);
    var bits = vec4<u32>();
    for (var q = part; q < QUADS; q += LANES) {
        let x = x_four(first + q * 4u);
        highest = max(highest, x);
        bits = max(bits, bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu));
    }
    let top = max_of_unit(highest_of(highest, bits));
    var fours = vec4<f32>();
    for (var q = part; q < QUADS; q += LANES) {
        fours += exp(x_four(first + q * 4u) - top);
    }
    let total = lost(top, log(sum_of_unit(sum_of_four(fours))));
    if (live) {
        for (var q = part; q < QUADS; q += LANES) {
            store4(first + q * 4u, x_four(first + q * 4u) - top - total);
        }
    }
}
