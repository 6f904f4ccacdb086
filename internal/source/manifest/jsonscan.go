package manifest

import (
	"bytes"
	"encoding/json"
)

// mostRepeats is how many repeated keys of one document are reported.
const mostRepeats = 10

// scan is the result of a walk through a JSON text.
type scan struct {
	depth   int // of objects and lists; at most one more than maxDepth
	repeats []repeat
}

// scanJSON walks through valid JSON. It does not go deeper than maxDepth.
func scanJSON(text []byte) scan {
	s := scanner{text: text, line: 1}
	for s.at < len(text) && s.found.depth <= maxDepth {
		s.step()
	}
	return s.found
}

// scanner is a position in a JSON text.
type scanner struct {
	text   []byte
	at     int
	line   int
	levels []level // the objects and lists that are open
	found  scan
}

// level is an open object or list.
type level struct {
	object bool
	inKey  bool   // of an object: the next string is a key
	key    []byte // of an object: the last key, with its quotes
	index  int    // of a list: the current element
	keys   keySet
}

// step consumes the next token, or a byte of a token without structure.
func (s *scanner) step() {
	var top *level
	if n := len(s.levels); n > 0 {
		top = &s.levels[n-1]
	}
	switch s.text[s.at] {
	case '{', '[':
		object := s.text[s.at] == '{'
		s.levels = append(s.levels, level{object: object, inKey: object})
		s.found.depth = max(s.found.depth, len(s.levels))
	case '}', ']':
		s.levels = s.levels[:max(0, len(s.levels)-1)]
	case ',':
		if top != nil {
			top.inKey = top.object
			top.index++
		}
	case '\n':
		s.line++
	case '"':
		s.quoted(top)
		return
	}
	s.at++
}

// quoted takes a string, which may be a key.
func (s *scanner) quoted(top *level) {
	end := s.at + 1
	for end < len(s.text) && s.text[end] != '"' {
		if s.text[end] == '\\' {
			end++
		}
		end++
	}
	text := s.text[s.at:min(end+1, len(s.text))]
	s.at = min(end+1, len(s.text))
	if top == nil || !top.inKey {
		return
	}
	top.inKey, top.key = false, text
	if top.keys.add(text) && len(s.found.repeats) < mostRepeats {
		s.found.repeats = append(s.found.repeats, s.place())
	}
}

// place returns the position of the scanner, as a path.
func (s *scanner) place() repeat {
	var r repeat
	for _, l := range s.levels {
		if l.object {
			r.path = under(r.path, unquote(l.key))
		} else {
			r = r.element(l.index)
		}
	}
	r.line = s.line
	return r
}

func unquote(text []byte) string {
	var s string
	if json.Unmarshal(text, &s) != nil {
		return string(text)
	}
	return s
}

// keySet is a set of keys. Most objects have few.
type keySet struct {
	few  [][]byte
	many map[string]struct{}
}

// add adds a key with its quotes, and reports whether it was there before.
func (k *keySet) add(key []byte) bool {
	if bytes.IndexByte(key, '\\') >= 0 {
		key = []byte(`"` + unquote(key) + `"`)
	}
	if k.many == nil && len(k.few) < 16 {
		for _, other := range k.few {
			if bytes.Equal(key, other) {
				return true
			}
		}
		k.few = append(k.few, key)
		return false
	}
	if k.many == nil {
		k.many = map[string]struct{}{}
		for _, other := range k.few {
			k.many[string(other)] = struct{}{}
		}
	}
	_, found := k.many[string(key)]
	k.many[string(key)] = struct{}{}
	return found
}
