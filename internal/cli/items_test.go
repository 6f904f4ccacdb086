package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/sluice-proxy/sluice/internal/answer/inspect"
)

// Printing item by item gives the same text as printing the list.
func TestItemsPrintLikeLists(t *testing.T) {
	for _, said := range []string{
		`{"items":[]}`,
		`{"items":[{"namespace":"default","name":"a"}` + "\n]}\n",
		`{"items":[{"name":"a","ports":[{"port":1},{"port":2}],"reason":"two\nlines"},{"name":"b: c"},{}]}`,
	} {
		var whole bytes.Buffer
		if err := json.Indent(&whole, []byte(strings.TrimSpace(said)), "", "  "); err != nil {
			t.Fatal(err)
		}
		if got := printed(t, said, jsonItems); got != whole.String()+"\n" {
			t.Errorf("JSON:\n%swant:\n%s", got, &whole)
		}
		asYAML, err := yaml.JSONToYAML([]byte(said))
		if err != nil {
			t.Fatal(err)
		}
		if got := printed(t, said, yamlItems); got != string(asYAML) {
			t.Errorf("YAML:\n%swant:\n%s", got, asYAML)
		}
	}
}

func printed(t *testing.T, said string, newPrinter func(w io.Writer) printer) string {
	t.Helper()
	var out bytes.Buffer
	p := newPrinter(&out)
	if _, err := eachItem(strings.NewReader(said), p.item); err != nil {
		t.Fatal(err)
	}
	if err := p.end(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A truncated or invalid answer is an error, not a short list.
func TestBadAnswers(t *testing.T) {
	for said, want := range map[string]string{
		``:                        "read the answer of the daemon: EOF",
		`[]`:                      "read the answer of the daemon (is it of another version?): got [, want {",
		`{"list":[]}`:             "read the answer of the daemon (is it of another version?): got list, want items",
		`{"items":[{"name":"a"}`:  "read the answer of the daemon: EOF",
		`{"items":[{"name":"a"},`: "read the answer of the daemon: EOF",
		`{"items":[{"name":"a`:    "read the answer of the daemon: unexpected EOF",
		`{"items":[{"name":["a"]}]}`: "read the answer of the daemon (is it of another version?): " +
			"json: cannot unmarshal array into Go struct field Service.name of type string",
	} {
		p := tableItems(new(bytes.Buffer), inspect.Narrow, inspect.ServiceTable)
		if _, err := eachItem(strings.NewReader(said), p.item); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", said, err, want)
		}
	}
}

// repeated is text without an end.
type repeated string

func (r repeated) Read(p []byte) (int, error) { return copy(p, r), nil }

// A list may be long, but an item has a limit.
func TestItemLimit(t *testing.T) {
	endless := io.MultiReader(strings.NewReader(`{"items":[{"name":"`), repeated("xxxx"))
	n, err := eachItem(endless, func(json.RawMessage) error { return nil })
	if n != 0 || err == nil || !strings.Contains(err.Error(), "an item is longer than 16777216 bytes") {
		t.Errorf("read %d items, %v", n, err)
	}
	const many = 1 << 16
	item := `{"name":"` + strings.Repeat("x", maxItem/many) + `"},`
	long := `{"items":[` + strings.Repeat(item, many) + `{}]}`
	if n, err := eachItem(strings.NewReader(long), func(json.RawMessage) error { return nil }); n != many+1 || err != nil {
		t.Errorf("read %d items, %v, want %d", n, err, many+1)
	}
}

func TestCandidates(t *testing.T) {
	got := candidates([]string{"default/web", "default/$(reboot)", "default/\x1b[2J", "kube-system/kube-dns.x"}, "", "")
	if want := []string{"default/web", "kube-system/kube-dns.x"}; !slices.Equal(got, want) {
		t.Errorf("candidates %q, want %q", got, want)
	}
}

func TestExitStatus(t *testing.T) {
	wrong := errors.New("wrong")
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{wrong, 1},
		{trouble(wrong), 2},
		{trouble(trouble(wrong)), 2},
		{trouble(nil), 0},
		{trouble(&exitError{status: 1}), 1},
	} {
		if got := exitStatus(tt.err); got != tt.want {
			t.Errorf("%v ends with %d, want %d", tt.err, got, tt.want)
		}
	}
	if !errors.Is(trouble(wrong), wrong) || trouble(wrong).Error() != "wrong" {
		t.Error("trouble hides what is wrong")
	}
}
