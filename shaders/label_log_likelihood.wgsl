// The sum of label * log_softmax(logit) over each row of WIDTH elements, which is read three times: for its maximum, the
// sum of e^(x - maximum), and the sum.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    var highest = logits_at(first);
    for (var c = part; c < WIDTH; c += LANES) {
        highest = max_nan(highest, logits_at(first + c));
    }
    highest = max_of_unit(highest);
    var total = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        total += exp(logits_at(first + c) - highest);
    }
    total = log(sum_of_unit(total));
    var likelihood = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        likelihood += labels_at(first + c) * (logits_at(first + c) - highest - total);
    }
    likelihood = sum_of_unit(likelihood);
    if (live && part == 0u) {
        store(row, lost(highest, likelihood));
    }
}
