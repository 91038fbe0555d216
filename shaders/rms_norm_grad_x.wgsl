// A row of x and of h = g * w, WIDTH elements each: the sums of x^2 and of x * h, then every element.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    var squares = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        let x = x_at(first + c);
        squares += x * x;
    }
    let size = inverseSqrt(sum_of_unit(squares) / f32(WIDTH) + EPS);
    var products = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        products += (x_at(first + c)) * g_at(first + c) * w_at(c);
    }
    let shared_part = sum_of_unit(products) / f32(WIDTH) * size * size;
    if (live) {
        for (var c = part; c < WIDTH; c += LANES) {
            store(first + c, (g_at(first + c) * w_at(c) - x_at(first + c) * shared_part) * size);
        }
    }
}
