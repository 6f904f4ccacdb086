package manifest

import (
	"bytes"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-proxy/sluice/internal/text"
)

// extent is the size of a YAML value with its aliases replaced by their anchors.
type extent struct {
	bytes int64
	depth int
}

// checkAliases returns an error if a YAML document would exceed the limits once
// its aliases are replaced. It does not replace them.
func (d document) checkAliases(limit int64) error {
	if bytes.IndexByte(d.text, '*') < 0 || bytes.IndexByte(d.text, '&') < 0 {
		return nil
	}
	var root yaml.Node
	if yaml.Unmarshal(d.text, &root) != nil {
		return nil // the conversion reports it
	}
	m := measurer{known: map[*yaml.Node]extent{}, open: map[*yaml.Node]bool{}, limit: limit}
	e, err := m.measure(&root)
	switch {
	case err != nil:
		return err
	case e.depth > maxDepth:
		return tooDeep(e.depth)
	case e.bytes > limit:
		return fmt.Errorf("with its aliases replaced the document has more than %s, which is the limit", text.Bytes(limit))
	}
	return nil
}

// measurer measures each value once.
type measurer struct {
	known map[*yaml.Node]extent // of anchors
	open  map[*yaml.Node]bool   // anchors that the current value is in
	limit int64
}

func (m measurer) measure(n *yaml.Node) (extent, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if m.open[n] {
		return extent{}, errors.New("an alias stands for something that it is a part of")
	}
	if e, ok := m.known[n]; ok {
		return e, nil
	}
	if n.Anchor != "" {
		m.open[n] = true
		defer delete(m.open, n)
	}
	out := extent{bytes: int64(len(n.Value)) + bytesPerValue}
	for _, inner := range n.Content {
		e, err := m.measure(inner)
		if err != nil {
			return extent{}, err
		}
		out.bytes = min(out.bytes+e.bytes, m.limit+1)
		out.depth = max(out.depth, e.depth+1)
	}
	if n.Anchor != "" {
		m.known[n] = out
	}
	return out, nil
}
