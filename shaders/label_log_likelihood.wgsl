// The sum of label * log_softmax(x) over each row of WIDTH elements, which is read three times: for its maximum, the sum
// of e^(x - maximum), and the sum.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    let highest = highest_of_row(row, part);
    let total = log(powers_of_row(row, part, highest));
    var likelihood = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        likelihood += labels_at(first + c) * (x_at(first + c) - highest - total);
    }
    likelihood = sum_of_unit(likelihood);
    if (live && part == 0u) {
        store(row, lost(highest, likelihood));
    }
}
