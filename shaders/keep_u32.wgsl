// One element of x where the condition is not 0, else 0.
fn unit(i: u32) {
    let condition = condition_at(i);
    store(i, select(0u, x_at(i), condition != 0.0 || is_nan(condition)));
}
