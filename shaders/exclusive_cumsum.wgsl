// A row of WIDTH elements: each invocation adds up a run of neighbours, learns the sum of the runs before its own, and
// writes the sum before each of its elements. With REVERSE the row is walked from its end.
fn place(row: u32, k: u32) -> u32 {
    return row * WIDTH + select(k, WIDTH - 1u - k, REVERSE == 1u);
}

fn unit(row: u32, part: u32, live: bool) {
    let run = (WIDTH + LANES - 1u) / LANES;
    let start = min(part * run, WIDTH);
    let stop = min(start + run, WIDTH);
    var total = 0.0;
    for (var k = start; k < stop; k++) {
        total += x_at(place(row, k));
    }
    total = sum_of_earlier(total);
    if (live) {
        for (var k = start; k < stop; k++) {
            store(place(row, k), total);
            total += x_at(place(row, k));
        }
    }
}
