package nft

// overlapping returns a range that shares a key with a new one.
func (o op) overlapping(e Element, elements Elements) string {
	if !o.set.Interval {
		return ""
	}
	for _, other := range elements.All() {
		if e.meets(other, o.set, o.table.Family) {
			return other.text(o.set, o.table.Family)
		}
	}
	return ""
}

// meets reports whether two ranges share a key: in each of their fields.
func (e Element) meets(o Element, s Set, f Family) bool {
	at := 0
	for _, t := range s.Key {
		end := at + t.width(f)
		if e.Key[at:end] > o.last(s)[at:end] || o.Key[at:end] > e.last(s)[at:end] {
			return false
		}
		at = end
	}
	return true
}
