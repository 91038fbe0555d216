// Computes nothing and touches no memory: a dispatch of no workgroups that only names what the next dispatches read.
@compute @workgroup_size(1)
fn main() {
}
