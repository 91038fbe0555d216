// One over the root of the mean square of a row of WIDTH elements.
fn size_of_row(row: u32, part: u32) -> f32 {
    let first = row * WIDTH;
    var squares = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        let x = x_at(first + c);
        squares += x * x;
    }
    return inverseSqrt(sum_of_unit(squares) / f32(WIDTH) + EPS);
}
