// A row of x and of h = g * w, WIDTH elements each: the sums of x^2 and of x * h, then every element.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    let size = size_of_row(row, part);
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
