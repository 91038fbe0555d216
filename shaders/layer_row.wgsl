// The mean of a row of WIDTH elements.
fn mean_of_row(row: u32, part: u32) -> f32 {
    let first = row * WIDTH;
    var sum = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        sum += x_at(first + c);
    }
    return sum_of_unit(sum) / f32(WIDTH);
}

// One over the root of its variance.
fn size_of_row(row: u32, part: u32, mean: f32) -> f32 {
    let first = row * WIDTH;
    var squares = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        let x = x_at(first + c) - mean;
        squares += x * x;
    }
    return inverseSqrt(sum_of_unit(squares) / f32(WIDTH) + EPS);
}
