// A row of WIDTH elements, four at a time: the sum, the sum of squares about the mean, then every element. It is read
// three times.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    var sums = vec4<f32>();
    for (var q = part; q < QUADS; q += LANES) {
        sums += x_four(first + q * 4u);
    }
    let mean = sum_of_unit(sum_of_four(sums)) / f32(WIDTH);
    var fours = vec4<f32>();
    for (var q = part; q < QUADS; q += LANES) {
        let x = x_four(first + q * 4u) - mean;
        fours += x * x;
    }
    let size = inverseSqrt(sum_of_unit(sum_of_four(fours)) / f32(WIDTH) + EPS);
    if (live && part == 0u) {
        store_mean(row, mean);
        store_size(row, size);
    }
    if (live) {
        for (var q = part; q < QUADS; q += LANES) {
            store4(first + q * 4u, (x_four(first + q * 4u) - mean) * size * w_four(q * 4u) + b_four(q * 4u));
        }
    }
}
