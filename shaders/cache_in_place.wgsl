// One element of a new row, into the cache where it lies; rows that would not fit are not written at all.
fn unit(i: u32) {
    let own = i / WIDTH / (NEW / CACHES);
    let row = i / WIDTH % (NEW / CACHES);
    let start = pos_at(own);
    let rows = ROWS / CACHES;
    if (row < written() && start <= rows && written() <= rows - start) {
        store((own * rows + start + row) * WIDTH + i % WIDTH, new_at(i));
    }
}
