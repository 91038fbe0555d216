// The maximum of a row of WIDTH elements.
fn highest_of_row(row: u32, part: u32) -> f32 {
    let first = row * WIDTH;
    var highest = x_at(first);
    for (var c = part; c < WIDTH; c += LANES) {
        highest = max_nan(highest, x_at(first + c));
    }
    return max_of_unit(highest);
}

// The sum of e^(x - highest) over it.
fn powers_of_row(row: u32, part: u32, highest: f32) -> f32 {
    let first = row * WIDTH;
    var total = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        total += exp(x_at(first + c) - highest);
    }
    return sum_of_unit(total);
}
