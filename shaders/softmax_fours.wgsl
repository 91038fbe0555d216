// A row of WIDTH elements, four at a time: its maximum, the sum of e^(x - maximum), then every element. It is read three
// times.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    let highest = highest_of_row(row, part);
    let factor = lost(highest, 1.0 / powers_of_row(row, part, highest));
    if (live) {
        for (var q = part; q < QUADS; q += LANES) {
            store4(first + q * 4u, exp(x_four(first + q * 4u) - highest) * factor);
        }
    }
}
