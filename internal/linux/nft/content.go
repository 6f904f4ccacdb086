package nft

import "iter"

// Elements are the elements of a set by their ids: their keys, with the end of a range behind the key. They take little
// memory, as a set may have hundreds of thousands. The zero value has none, and cannot be added to.
type Elements map[string]content

// content is an element without its key: the lengths of the end of its range, of its data and
// of its chain in one byte each, then the data, the chain and the comment.
type content string

// Get returns an element; there is false if there is none.
func (s Elements) Get(id string) (e Element, there bool) {
	c, there := s[id]
	if !there {
		return Element{}, false
	}
	return c.element(id), true
}

// All returns all elements with their ids.
func (s Elements) All() iter.Seq2[string, Element] {
	return func(yield func(string, Element) bool) {
		for id, c := range s {
			if !yield(id, c.element(id)) {
				return
			}
		}
	}
}

// Put adds an element, or replaces the one with its id. Each of its parts has at most 255 bytes.
func (s Elements) Put(e Element) {
	var room [64]byte // for most elements: only the content is allocated
	b := append(room[:0], byte(len(e.End)), byte(len(e.Data)), byte(len(e.Goto)))
	b = append(append(append(b, e.Data...), e.Goto...), e.Comment...)
	s[e.id()] = content(b)
}

const contentHeader = 3

func (c content) element(id string) Element {
	key, data, chain := len(id)-int(c[0]), contentHeader+int(c[1]), contentHeader+int(c[1])+int(c[2])
	return Element{
		Key: id[:key], End: id[key:], Data: string(c[contentHeader:data]), Goto: string(c[data:chain]),
		Comment: string(c[chain:]),
	}
}
