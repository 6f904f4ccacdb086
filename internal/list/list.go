// Package list has doubly linked lists whose elements are part of the listed objects, so that a list allocates nothing.
package list

// Element is an element of a list, or the head of a list. An element is in at most one list. The zero value is an
// element of no list, or an empty list.
type Element[T any] struct {
	Next, Prev *Element[T]
	Item       T
}

// Empty reports whether a list has no elements.
func (l *Element[T]) Empty() bool { return l.Next == nil || l.Next == l }

// Push adds an element at the end of a list.
func (l *Element[T]) Push(e *Element[T]) {
	if l.Next == nil {
		l.Next, l.Prev = l, l
	}
	e.Prev, e.Next = l.Prev, l
	l.Prev.Next, l.Prev = e, e
}

// Remove removes the element from its list, if it is in one.
func (l *Element[T]) Remove() {
	if l.Next == nil {
		return
	}
	l.Prev.Next, l.Next.Prev = l.Next, l.Prev
	l.Next, l.Prev = nil, nil
}
