// A row of x and of labels, WIDTH elements each: the maximum of x, the sum of e^(x - maximum) and that of the labels, then
// every element.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    let highest = highest_of_row(row, part);
    let total = powers_of_row(row, part, highest);
    var labels = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        labels += labels_at(first + c);
    }
    let factor = lost(highest, sum_of_unit(labels) / total);
    if (live) {
        for (var c = part; c < WIDTH; c += LANES) {
            let power = exp(x_at(first + c) - highest);
            store(first + c, power * factor - labels_at(first + c));
        }
    }
}
