// A row of WIDTH elements: the sum, the sum of squares about the mean, then every element. It is read three times.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    var sum = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        sum += x_at(first + c);
    }
    let mean = sum_of_unit(sum) / f32(WIDTH);
    var squares = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        let x = x_at(first + c) - mean;
        squares += x * x;
    }
    let size = inverseSqrt(sum_of_unit(squares) / f32(WIDTH) + EPS);
    if (live && part == 0u) {
        store_mean(row, mean);
        store_size(row, size);
    }
    if (live) {
        for (var c = part; c < WIDTH; c += LANES) {
            store(first + c, (x_at(first + c) - mean) * size * w_at(c) + b_at(c));
        }
    }
}
