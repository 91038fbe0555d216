// One element of a new row, into the cache where it lies; rows that would not fit are not written at all.
fn unit(i: u32) {
    let row = i / WIDTH;
    let start = pos_at(0u);
    if (row < written() && start <= ROWS && written() <= ROWS - start) {
        store(start * WIDTH + i, new_at(i));
    }
}
