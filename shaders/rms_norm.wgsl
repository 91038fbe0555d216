// A row of WIDTH elements: the sum of squares, then every element. It is read twice.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    var squares = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        let x = x_at(first + c);
        squares += x * x;
    }
    let size = inverseSqrt(sum_of_unit(squares) / f32(WIDTH) + EPS);
    if (live && part == 0u) {
        store_size(row, size);
    }
    if (live) {
        for (var c = part; c < WIDTH; c += LANES) {
            store(first + c, x_at(first + c) * size * w_at(c));
        }
    }
}
