package manifest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-proxy/sluice/internal/route"
)

// repeat is a key that a YAML document has more than once in one place.
type repeat struct {
	items []int  // the elements of "items" it is in, from the outermost
	path  string // in the object it is in: "spec.clusterIP"
	line  int    // of the document
}

// repeats returns the keys of a document that occur more than once, in order.
func (d document) repeats() []repeat {
	var root yaml.Node
	if yaml.Unmarshal(d.text, &root) != nil {
		return nil
	}
	found := repeat{}.in(&root)
	return found[:min(len(found), mostRepeats)]
}

// in returns the repeats in the node at r.
func (r repeat) in(n *yaml.Node) []repeat {
	var out []repeat
	switch n.Kind {
	case yaml.DocumentNode:
		for _, inner := range n.Content {
			out = append(out, r.in(inner)...)
		}
	case yaml.SequenceNode:
		for i, inner := range n.Content {
			out = append(out, r.element(i).in(inner)...)
		}
	case yaml.MappingNode:
		seen := map[string]struct{}{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i]
			at := repeat{r.items, under(r.path, name.Value), name.Line}
			if _, twice := seen[name.Value]; twice {
				out = append(out, at)
			}
			seen[name.Value] = struct{}{}
			out = append(out, at.in(n.Content[i+1])...)
		}
	default: // a value, or an alias of what is elsewhere
	}
	return out
}

// element returns the place of an element of the list at r.
func (r repeat) element(i int) repeat {
	if r.path == "items" {
		return repeat{items: append(slices.Clip(r.items), i)}
	}
	return repeat{items: r.items, path: fmt.Sprintf("%s[%d]", r.path, i)}
}

// oddities are the problems of the repeated keys of a document, and others that its
// reader found. The text is the document as JSON.
func (d document) oddities(text []byte, repeats []repeat, odd error) []route.Problem {
	var out []route.Problem
	for _, r := range repeats {
		out = append(out, route.Problem{
			Object: r.object(text), Field: r.path,
			Reason: fmt.Sprintf("given more than once, again in line %d; the last one counts", d.line+r.line-1),
		})
	}
	if len(repeats) == mostRepeats {
		out = append(out, route.Problem{Reason: "there may be more keys that are given more than once"})
	}
	if odd != nil {
		out = append(out, route.Problem{Reason: odd.Error()})
	}
	return out
}

// object returns the name of the object a repeat is in.
func (r repeat) object(text []byte) string {
	var names []string
	kind := ""
	for _, i := range r.items {
		var list struct {
			header
			Items []json.RawMessage `json:"items"`
		}
		if json.Unmarshal(text, &list) != nil || i >= len(list.Items) {
			break // a list in which another one of this name counts
		}
		kind, _ = strings.CutSuffix(list.Kind, "List")
		text = list.Items[i]
		names = append(names, fmt.Sprintf("item %d", i+1))
	}
	h := header{Kind: kind}
	_ = json.Unmarshal(text, &h) // on an error the name stays empty
	t, _ := traitOf(h.Kind)
	if k, problem := h.key(t); problem == nil {
		names = append(names, k.String())
	} else if h.Kind != "" {
		names = append(names, h.Kind)
	}
	return strings.Join(names, ": ")
}
