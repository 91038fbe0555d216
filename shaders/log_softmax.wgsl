// A row of WIDTH elements: its maximum, the sum of e^(x - maximum), then x - maximum - ln(sum). It is read three times.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    var highest = x_at(first);
    for (var c = part; c < WIDTH; c += LANES) {
        highest = max_nan(highest, x_at(first + c));
    }
    highest = max_of_unit(highest);
    var total = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        total += exp(x_at(first + c) - highest);
    }
    total = log(sum_of_unit(total));
    if (live) {
        for (var c = part; c < WIDTH; c += LANES) {
            store(first + c, lost(highest, x_at(first + c) - highest - total));
        }
    }
}
