//go:build linux

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/test/apiserver"
	"github.com/sluice-proxy/sluice/test/bench/fetch"
	"github.com/sluice-proxy/sluice/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m, apiserver.Assets) }

// Each way to fetch everything works against a real API server, and has a row.
func TestListing(t *testing.T) {
	o, err := parse(strings.Fields("-sizes 600 -clients 2 -rounds 1"), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := measure(o, &out); err != nil {
		t.Fatal(err)
	}
	for _, m := range fetch.Methods() {
		if !strings.Contains(out.String(), "| "+m.Name+" | 2 | ") {
			t.Errorf("there is no row %q", m.Name)
		}
	}
	t.Log(out.String())
}

func TestParse(t *testing.T) {
	for args, problem := range map[string]string{
		"":                                 "",
		"-sizes 1,2000000":                 `want numbers from 1 to 1000000, got "2000000"`,
		"-clients 0":                       `got "0"`,
		"-clients many":                    `got "many"`,
		"-rounds 0":                        "0 rounds",
		"please":                           `["please"]`,
		"-sizes 500 -clients 7 -limit 10s": "",
	} {
		var help strings.Builder
		_, err := parse(strings.Fields(args), &help)
		if (problem == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), problem) {
			t.Errorf("%q: %v, want %q", args, err, problem)
		}
	}
	o, err := parse([]string{"-sizes=500,20", "-clients", "7"}, t.Output())
	if err != nil || !slices.Equal(o.sizes, []int{500, 20}) || !slices.Equal(o.clients, []int{7}) {
		t.Errorf("got %+v, %v", o, err)
	}
}

func TestRow(t *testing.T) {
	var out strings.Builder
	r := &result{
		variant: variant{fetch.Methods()[0], 2}, before: 100 << 20, peak: 130 << 20, bytes: 8 << 20, refused: 3,
		each: []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second},
		costs: []fetch.Cost{
			{Took: 4 * time.Second, Client: time.Millisecond, Server: 5 * time.Second},
			{Took: 2 * time.Second, Client: time.Millisecond, Server: 3 * time.Second},
		},
	}
	r.print(&out)
	const want = "| List at resourceVersion=0 | 2 | 4000 ms | 4000 ms | 3000 ms | 4000 ms | 4000 ms | 2.0 | 5000 ms | 100 | 130 | 1.0 ms | 3 |\n"
	if out.String() != want {
		t.Errorf("got %s, want %s", out.String(), want)
	}
}
