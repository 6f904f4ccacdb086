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
// itself is valid YAML, the pieces have the objects of the whole: text in quotes or
// brackets that goes over a cut would not end in its piece, and no other
// text can have less indentation than the item it is in. A piece that is not
// valid makes the whole invalid.
type listPieces struct {
	head  []document // before and behind the items
	items []document
}

// cutList cuts a list. It returns false if the document does not have the form
// in which kubectl and other programs write a list.
func (d document) cutList() (out listPieces, ok bool) {
	const noItem = -1
	indent := noItem // of the dashes of items
	item := document{line: d.line}
	start := 0 // of the item
	at := 0
	endItem := func() {
		if indent == noItem {
			return
		}
		item.text = bytes.Clone(d.text[start:at])
		item.text[indent] = ' ' // in place of the dash
		out.items = append(out.items, item)
	}
	line := d.line
	for text := range lines(d.text) {
		n := indentOf(text)
		isItem := hasMark(text[n:], "-") && (indent == noItem || n == indent)
		switch {
		case out.head == nil:
			if isItemsLine(text) {
				out.head = []document{{line: d.line, text: d.text[:at]}}
			}
		case indent != noItem && n > indent, !hasContent(text):
			// A part of the item.
		case isItem:
			endItem()
			indent, start, item.line = n, at, line
		case n > 0:
			return listPieces{}, false
		default:
			endItem()
			out.head = append(out.head, document{line: line, text: d.text[at:]})
			return out, indent != noItem
		}
		at += len(text)
		line++
	}
	endItem()
	return out, indent != noItem
}

// isItemsLine reports whether the items of a list begin behind a line.
func isItemsLine(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("items:"))
	return ok && !bytes.HasPrefix(rest, []byte("#")) && !hasContent(rest)
}

// pieces reads a list in pieces.
func (r reader) pieces(l listPieces) content {
	h, err := r.headOf(l)
	if err != nil {
		return r.failed(key{}, route.Problem{Reason: err.Error()})
	}
	from, misspelled, ok := h.itemHeader()
	if !ok {
		return content{problems: misspelled}
	}
	parts := make([]content, 0, len(l.items))
	for i, d := range l.items {
		if r.isStopped() {
			break
		}
		text, repeated, err := d.toJSON(r.limits.DocumentBytes)
		if err != nil {
			return r.failed(key{}, route.Problem{Object: fmt.Sprintf("item %d", i+1), Reason: err.Error()})
		}
		part := r.object(text, from)
		parts = append(parts, part.withRepeated(part.name(), repeated))
	}
	return joinItems(parts)
}

// headOf returns the header of a list in pieces.
func (r reader) headOf(l listPieces) (header, error) {
	var head struct {
		header
		Items any `json:"items"`
	}
	for _, d := range l.head {
		converted, repeated, err := d.toJSON(r.limits.DocumentBytes)
		if err == nil {
			err = json.UnmarshalCaseSensitivePreserveInts(converted, &head)
		}
		if err == nil && (len(repeated) > 0 || head.Items != nil) {
			err = errors.New("a key of the list is repeated")
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
