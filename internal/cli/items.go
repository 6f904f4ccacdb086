package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/inspect"
	"github.com/sluice-proxy/sluice/internal/text"
)

// printer prints a list one item at a time: it may be long, and in a pod this
// process shares the memory of the daemon.
type printer struct {
	item func(json.RawMessage) error
	end  func() error
}

// maxItem is the longest item in bytes that is read.
const maxItem = 16 << 20

// itemReader fails when more than left bytes are read before left is set anew.
type itemReader struct {
	io.Reader
	left int
}

// Read implements io.Reader.
func (r *itemReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, fmt.Errorf("an item is longer than %d bytes", maxItem)
	}
	n, err := r.Reader.Read(p)
	r.left -= n
	return n, err
}

// eachItem reads {"items": [...]} and returns how many there were. It holds one
// item in memory, of up to maxItem bytes.
func eachItem(r io.Reader, do func(json.RawMessage) error) (int, error) {
	items := &itemReader{r, maxItem}
	dec := json.NewDecoder(bufio.NewReader(items))
	for _, want := range []json.Token{json.Delim('{'), "items", json.Delim('[')} {
		got, err := dec.Token()
		if err != nil {
			return 0, fmt.Errorf("read the answer of the daemon: %w", err)
		}
		if got != want {
			return 0, fmt.Errorf("read the answer of the daemon (is it of another version?): got %s, want %v", text.Short(fmt.Sprint(got)), want)
		}
	}
	n := 0
	for ; dec.More(); n++ {
		var item json.RawMessage
		if err := dec.Decode(&item); err != nil {
			return n, fmt.Errorf("read the answer of the daemon: %w", err)
		}
		if err := do(item); err != nil {
			return n, err
		}
		items.left = maxItem
	}
	if _, err := dec.Token(); err != nil {
		return n, fmt.Errorf("read the answer of the daemon: %w", err)
	}
	return n, nil
}

// jsonItems prints what the daemon said, indented.
func jsonItems(w io.Writer) printer {
	out := bufio.NewWriter(w)
	before := "{\n  \"items\": ["
	return printer{
		item: func(said json.RawMessage) error {
			var b bytes.Buffer
			if err := json.Indent(&b, said, "    ", "  "); err != nil {
				return fmt.Errorf("print the answer: %w", err)
			}
			_, err := fmt.Fprintf(out, "%s\n    %s", before, &b)
			before = ","
			return err
		},
		end: func() error {
			if before == "," {
				before = "\n  "
			}
			_, _ = out.WriteString(before + "]\n}\n") // Flush tells
			return out.Flush()
		},
	}
}

// yamlItems prints what the daemon said as YAML.
func yamlItems(w io.Writer) printer {
	out := bufio.NewWriter(w)
	_, _ = out.WriteString("items:") // Flush tells
	empty := true
	return printer{
		item: func(said json.RawMessage) error {
			item, err := yaml.JSONToYAML(said)
			if err != nil {
				return fmt.Errorf("print the answer: %w", err)
			}
			item = bytes.ReplaceAll(bytes.TrimSpace(item), []byte("\n"), []byte("\n  "))
			_, err = fmt.Fprintf(out, "\n- %s", item)
			empty = false
			return err
		},
		end: func() error {
			if empty {
				_, _ = out.WriteString(" []")
			}
			_, _ = out.WriteString("\n")
			return out.Flush()
		},
	}
}

// tableItems prints what this version knows of an answer as a table; nothing,
// if there is nothing in it.
func tableItems[T any](w io.Writer, width inspect.Width, newTable func(io.Writer, inspect.Width) *inspect.Table[T]) printer {
	t := newTable(w, width)
	empty := true
	return printer{
		item: func(said json.RawMessage) error {
			v, err := decode[T](said)
			if err == nil {
				t.Add(v)
				empty = false
			}
			return err
		},
		end: func() error {
			if empty {
				return nil
			}
			return t.Flush()
		},
	}
}
