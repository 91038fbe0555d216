// One element of a matrix that lies in codes.
fn unit(i: u32) {
    store(i, weight(i / K, i % K));
}
