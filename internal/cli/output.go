package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/text"
)

// askTimeout bounds the wait for an answer of the daemon.
const askTimeout = 30 * time.Second

// ask queries the daemon of the network namespace of this process.
func ask(ctx context.Context, path string, query url.Values) (json.RawMessage, error) {
	var answer json.RawMessage
	err := admin.DialNearest().Get(ctx, path, query, &answer)
	return answer, err
}

// output is the value of --output: the format of an answer.
type output struct {
	format  string
	formats []string // the first is the default
}

func newOutput(formats ...string) *output { return &output{formats[0], formats} }

// register adds the flag to a command.
func (o *output) register(cmd *cobra.Command, fs *pflag.FlagSet) {
	fs.VarP(o, "output", "o", "how to print: "+strings.Join(o.formats, ", "))
	complete(cmd, "output", o.formats)
}

// String implements pflag.Value.
func (o *output) String() string { return o.format }

// Type implements pflag.Value.
func (o *output) Type() string { return "string" }

// Set implements pflag.Value.
func (o *output) Set(s string) error {
	if !slices.Contains(o.formats, s) {
		return fmt.Errorf("want %s", strings.Join(o.formats, ", "))
	}
	o.format = s
	return nil
}

// print prints an answer as JSON or YAML with all its fields, or else calls
// asText.
func (o *output) print(w io.Writer, answer json.RawMessage, asText func() error) error {
	var encode func(json.RawMessage, string) ([]byte, error)
	switch o.format {
	case "json":
		encode = asJSON
	case "yaml":
		encode = asYAML
	default:
		return asText()
	}
	out, err := encode(answer, "")
	if err == nil {
		_, err = w.Write(append(out, '\n'))
	}
	return err
}

// asJSON formats an answer without a line end, its lines but the first indented.
func asJSON(answer json.RawMessage, indent string) ([]byte, error) {
	var b bytes.Buffer
	if err := json.Indent(&b, bytes.TrimSpace(answer), indent, "  "); err != nil {
		return nil, fmt.Errorf("print the answer: %w", err)
	}
	return b.Bytes(), nil
}

// asYAML formats an answer as YAML, like asJSON.
func asYAML(answer json.RawMessage, indent string) ([]byte, error) {
	out, err := yaml.JSONToYAML(answer)
	if err != nil {
		return nil, fmt.Errorf("print the answer: %w", err)
	}
	return bytes.ReplaceAll(bytes.TrimSpace(out), []byte("\n"), []byte("\n"+indent)), nil
}

// decode reads the fields of an answer that this version knows.
func decode[T any](answer json.RawMessage) (T, error) {
	var v T
	if err := json.Unmarshal(answer, &v); err != nil {
		return v, fmt.Errorf("read the answer of the daemon (is it of another version?): %w", err)
	}
	return v, nil
}

// printer prints a list item by item, because lists may be long, and in a pod this
// process shares the memory limit of the daemon.
type printer struct {
	item func(json.RawMessage) error
	end  func() error
}

// frame is the text around the items of a list.
type frame struct {
	encode           func(json.RawMessage, string) ([]byte, error)
	indent           string
	begin            string
	before, between  string // each item, two items
	end, endOfNoItem string
}

// jsonItems returns a printer for {"items": [...]}.
func jsonItems(w io.Writer) printer {
	return frame{asJSON, "    ", "{\n  \"items\": [", "\n    ", ",", "\n  ]\n}\n", "]\n}\n"}.printer(w)
}

// yamlItems returns a printer for the same list in YAML.
func yamlItems(w io.Writer) printer {
	return frame{asYAML, "  ", "items:", "\n- ", "", "\n", " []\n"}.printer(w)
}

func (f frame) printer(w io.Writer) printer {
	out := bufio.NewWriter(w)
	separator, end := f.begin, f.begin+f.endOfNoItem
	return printer{
		item: func(answer json.RawMessage) error {
			item, err := f.encode(answer, f.indent)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(out, separator, f.before, string(item))
			separator, end = f.between, f.end
			return err
		},
		end: func() error {
			_, _ = out.WriteString(end) // Flush reports errors
			return out.Flush()
		},
	}
}

// tableItems returns a printer for a table of what this version knows of each
// item. It prints nothing if there is no item.
func tableItems[T any](w io.Writer, width inspect.Width, newTable func(io.Writer, inspect.Width) *inspect.Table[T]) printer {
	t, end := newTable(w, width), func() error { return nil }
	return printer{
		item: func(answer json.RawMessage) error {
			v, err := decode[T](answer)
			if err == nil {
				t.Add(v)
				end = t.Flush
			}
			return err
		},
		end: func() error { return end() },
	}
}

// maxItem is the size in bytes of the longest item that eachItem reads.
const maxItem = 16 << 20

// itemReader returns an error after left bytes.
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

// eachItem reads {"items": [...]} and returns the number of items. It keeps one
// item in memory, of at most maxItem bytes.
func eachItem(r io.Reader, do func(json.RawMessage) error) (n int, err error) {
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
