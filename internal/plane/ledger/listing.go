package ledger

// MapListing is a Listing of entries by their keys, all of which are owned by the plane. It removes entries that are
// taken.
type MapListing[K, V comparable] map[K]V

// Take implements Listing.
func (l MapListing[K, V]) Take(want Entry[K, V]) (had V, is Match) {
	had, there := l[want.Key]
	delete(l, want.Key)
	return want.Match(had, there)
}

// Rest implements Listing.
func (l MapListing[K, V]) Rest() []Step[K, V] {
	var list []Step[K, V]
	for key, value := range l {
		list = append(list, Step[K, V]{Op: Remove, Key: key, Old: value})
	}
	return list
}
