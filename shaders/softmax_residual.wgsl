// A row of logits and of labels, WIDTH elements each: the maximum, the sum of e^(x - maximum) and that of the labels, then
// every element.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    var highest = logits_at(first);
    for (var c = part; c < WIDTH; c += LANES) {
        highest = max_nan(highest, logits_at(first + c));
    }
    highest = max_of_unit(highest);
    var total = 0.0;
    var labels = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        total += exp(logits_at(first + c) - highest);
        labels += labels_at(first + c);
    }
    total = sum_of_unit(total);
    let factor = lost(highest, sum_of_unit(labels) / total);
    if (live) {
        for (var c = part; c < WIDTH; c += LANES) {
            let power = exp(logits_at(first + c) - highest);
            store(first + c, power * factor - labels_at(first + c));
        }
    }
}
