// One element of the result [.., EXTENT, INNER]: the sum of src [.., COUNT, INNER] along the middle axis over the places whose
// idx is its own. COUNT indices are read for every element.
fn unit(i: u32) {
    let inner = i % INNER;
    let own = i / INNER % EXTENT;
    let start = i / (INNER * EXTENT) * COUNT * INNER + inner;
    var total = 0.0;
    for (var s = 0u; s < COUNT; s++) {
        if (idx_at(start + s * INNER) == own) {
            total += src_at(start + s * INNER);
        }
    }
    store(i, total);
}
