// The maximum of a row of WIDTH elements, four at a time.
fn highest_of_row(row: u32, part: u32) -> f32 {
    let first = row * WIDTH;
    var highest = x_four(first);
    var bits = vec4<u32>();
    for (var q = part; q < QUADS; q += LANES) {
        let x = x_four(first + q * 4u);
        highest = max(highest, x);
        bits = max(bits, bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu));
    }
    return max_of_unit(highest_of(highest, bits));
}

// The sum of e^(x - highest) over it.
fn powers_of_row(row: u32, part: u32, highest: f32) -> f32 {
    let first = row * WIDTH;
    var fours = vec4<f32>();
    for (var q = part; q < QUADS; q += LANES) {
        fours += exp(x_four(first + q * 4u) - highest);
    }
    return sum_of_unit(sum_of_four(fours));
}
