// The index in its image of the first largest pixel of a window. A NaN is the largest.
fn unit(u: u32) {
    let image = u / (OH * OW) * (H * W);
    let top = u / OW % OH * SH;
    let start = u % OW * SW;
    var found = (max(top, PH) - PH) * W + max(start, PW) - PW;
    var best = x_at(image + found);
    for (var y = max(top, PH); y < min(top + KH, H + PH); y++) {
        for (var x = max(start, PW); x < min(start + KW, W + PW); x++) {
            let here = (y - PH) * W + x - PW;
            let value = x_at(image + here);
            if (!is_nan(best) && (is_nan(value) || value > best)) {
                best = value;
                found = here;
            }
        }
    }
    store(u, found);
}
