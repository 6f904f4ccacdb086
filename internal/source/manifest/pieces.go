package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/json"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// listPieces is a YAML document that is a list, cut into pieces that take little
// memory each.
//
// A document is cut at the lines at which its items begin. If each piece by
// itself is valid YAML, the pieces are what the whole is: no text in quotes or
// brackets goes over a cut, since it would not end in its piece, and no other
// text can have less indentation than the item it is in. A piece that is not
// valid makes the whole invalid.
type listPieces struct {
	head  []document // what is before and behind the items
	items []document
}

// cutList cuts a list. It returns false if the document does not have the form
// in which kubectl and other programs write a list.
func (d document) cutList() (listPieces, bool) {
	var out listPieces
	before, found := d.lineAfter("items:")
	if !found {
		return out, false
	}
	indent, ok := dashIndent(d.text[before:])
	if !ok {
		return out, false
	}
	out.head = append(out.head, document{line: d.line, text: dropLastLine(d.text[:before])})
	at := before
	for at < len(d.text) {
		end := itemEnd(d.text, at, indent)
		text := d.text[at:end]
		switch n := indentOf(text); {
		case isItem(text, indent):
			text = bytes.Clone(text)
			text[indent] = ' '
			out.items = append(out.items, document{line: d.line + countLines(d.text[:at]), text: text})
		case n == 0 && hasContent(text):
			out.head = append(out.head, document{line: d.line + countLines(d.text[:at]), text: d.text[at:]})
			end = len(d.text)
		case hasContent(text):
			return out, false
		}
		at = end
	}
	return out, true
}

// lineAfter returns the offset behind the first line of which nothing but a
// comment follows the text.
func (d document) lineAfter(start string) (int, bool) {
	for at := 0; at < len(d.text); {
		line := d.text[at : at+lineLength(d.text[at:])]
		at += len(line)
		rest, ok := bytes.CutPrefix(line, []byte(start))
		if ok && !bytes.HasPrefix(rest, []byte("#")) && !hasContent(rest) {
			return at, true
		}
	}
	return 0, false
}

func dropLastLine(text []byte) []byte {
	end := 0
	for at := 0; at < len(text); at += lineLength(text[at:]) {
		end = at
	}
	return text[:end]
}

// dashIndent returns the indentation of the first item.
func dashIndent(text []byte) (int, bool) {
	for len(text) > 0 {
		n := lineLength(text)
		if line := text[:n]; hasContent(line) {
			return indentOf(line), isItem(line, indentOf(line))
		}
		text = text[n:]
	}
	return 0, false
}

func indentOf(line []byte) int { return len(line) - len(bytes.TrimLeft(line, " ")) }

// isItem reports whether an item begins on a line.
func isItem(line []byte, indent int) bool {
	if len(line) <= indent || indentOf(line) != indent || line[indent] != '-' {
		return false
	}
	rest := line[indent+1:]
	return len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t' || breakLength(rest) > 0
}

// itemEnd returns the end of the item that begins at an offset: the next line that is
// not empty and not indented more.
func itemEnd(text []byte, at, indent int) int {
	at += lineLength(text[at:])
	for at < len(text) {
		n := lineLength(text[at:])
		line := text[at : at+n]
		if indentOf(line) <= indent && hasContent(line) {
			break
		}
		at += n
	}
	return at
}

// readList reads a list in pieces.
func (r reader) readList(place string, l listPieces) content {
	fail := func(where string, err error) content {
		return r.failed(key{}, route.Problem{Object: place + where, Reason: err.Error()})
	}
	h, err := r.headOf(l)
	if err != nil {
		return fail("", err)
	}
	from, other, ok := h.itemHeader()
	if !ok {
		return content{problems: other}
	}
	parts := make([]content, len(l.items))
	for i, d := range l.items {
		where := fmt.Sprintf("item %d", i+1)
		text, repeats, odd, err := d.toJSON(r.limits.DocumentBytes)
		if err != nil {
			return fail(": "+where, err)
		}
		parts[i] = r.object(text, from)
		parts[i].problems = append(parts[i].problems, d.oddities(text, repeats, odd)...)
		parts[i].locate(where)
		if r.isStopped() {
			break
		}
	}
	out := join(parts, "", "item")
	out.locate(place)
	return out
}

// headOf returns the header of a list in pieces.
func (r reader) headOf(l listPieces) (header, error) {
	var head struct {
		header
		Items any `json:"items"`
	}
	for _, d := range l.head {
		said, repeats, _, err := d.toJSON(r.limits.DocumentBytes)
		if err == nil {
			err = json.UnmarshalCaseSensitivePreserveInts(said, &head)
		}
		if err == nil && (len(repeats) > 0 || head.Items != nil) {
			err = errors.New("a key of the list is given more than once")
		}
		if err != nil {
			return header{}, err
		}
	}
	if !strings.HasSuffix(head.Kind, "List") || head.APIVersion == "" {
		return header{}, fmt.Errorf("the document is larger than %s and is no List with an apiVersion", text.Bytes(r.limits.DocumentBytes))
	}
	return head.header, nil
}
