package forward

// link is an element of a list, or the head of a list. An element is in at most one list.
type link[T any] struct {
	next, prev *link[T]
	item       T
}

// empty reports whether a list has no elements. The zero value is an empty list.
func (head *link[T]) empty() bool { return head.next == nil || head.next == head }

// push adds an element at the end of a list.
func (head *link[T]) push(e *link[T]) {
	if head.next == nil {
		head.next, head.prev = head, head
	}
	e.prev, e.next = head.prev, head
	head.prev.next, head.prev = e, e
}

// remove removes the element from its list, if it is in one.
func (e *link[T]) remove() {
	if e.next == nil {
		return
	}
	e.prev.next, e.next.prev = e.next, e.prev
	e.next, e.prev = nil, nil
}
