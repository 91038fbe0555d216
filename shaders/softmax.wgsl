// A row of WIDTH elements: its maximum, the sum of e^(x - maximum), then every element. It is read three times.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    let highest = highest_of_row(row, part);
    let total = powers_of_row(row, part, highest);
    if (live) {
        for (var c = part; c < WIDTH; c += LANES) {
            store(first + c, lost(highest, exp(x_at(first + c) - highest) / total));
        }
    }
}
