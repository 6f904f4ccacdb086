package forward

// link is an element of a list, or the head of a list. An element is in at most one list.
type link[T any] struct {
	next, prev *link[T]
	item       T
}

// empty reports whether a list has no elements. The zero value is an empty list.
func (l *link[T]) empty() bool { return l.next == nil || l.next == l }

// push adds an element at the end of a list.
func (l *link[T]) push(e *link[T]) {
	if l.next == nil {
		l.next, l.prev = l, l
	}
	e.prev, e.next = l.prev, l
	l.prev.next, l.prev = e, e
}

// remove removes the element from its list, if it is in one.
func (l *link[T]) remove() {
	if l.next == nil {
		return
	}
	l.prev.next, l.next.prev = l.next, l.prev
	l.next, l.prev = nil, nil
}
