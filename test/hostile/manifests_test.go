//go:build linux

package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/sluice-proxy/sluice/test/harness"
)

// manifests are malformed or expensive manifest files. They do not depend on the plane.
func manifests() []attack {
	var rows []attack
	for _, f := range []struct {
		name string
		text func() []byte
		cpu  float64
	}{
		{"alias bomb", aliasBomb, 0},
		{"deep nesting", deepNesting, 0},
		{"5,000 nested Lists", func() []byte {
			const list = `{"apiVersion":"v1","kind":"List","items":[`
			return []byte(strings.Repeat(list, 5000) + strings.Repeat("]}", 5000))
		}, 0},
		{"huge scalars", hugeScalars, 1},
		{"200,000 broken documents", func() []byte {
			return bytes.Repeat([]byte("---\nkind: Service\nmetadata: {name: [}\n"), 200_000)
		}, 1},
		{"a million empty objects", func() []byte {
			return bytes.Repeat([]byte("---\nkind: ConfigMap\n"), 1_000_000)
		}, 1},
		{"100,000 nameless Services", func() []byte {
			return bytes.Repeat([]byte(`{"apiVersion":"v1","kind":"Service","metadata":{},"spec":{}}`+"\n"), 100_000)
		}, 1},
		{"binary noise", func() []byte { return bytes.Repeat([]byte("\x00\xff\x1b[2J\x07---\n- \x80{"), 1<<16) }, 1},
	} {
		rows = append(rows, attack{
			name:   f.name,
			limits: limits{cpu: f.cpu, change: 2 * time.Second},
			during: func(ctx context.Context, s *attackTest) error {
				err := s.put("hostile.yaml", f.text())
				s.pause(ctx, 700*time.Millisecond)
				return errors.Join(err, s.put("hostile.yaml", append(f.text(), "\n# again"...)))
			},
		})
	}
	return append(rows,
		attack{name: "encodings and ends of documents", before: putEncodings, after: checkEncodings},
		attack{name: "duplicate keys", before: putDuplicates, after: func(s *attackTest) {
			s.checkReported("duplicate.json")
			s.checkReported("duplicate.yaml")
		}},
		attack{name: "a file of 4 GB", before: putSparse, during: growSparse},
		attack{name: "FIFOs, devices and broken links", before: putSpecialFiles, during: churnSpecialFiles},
		attack{name: "a FIFO in place of the configuration", before: putConfig, during: replaceConfig, after: checkConfig},
		attack{
			name: "files that are added and deleted", limits: limits{cpu: 1}, during: churnFiles, after: restartUnderChurn,
		},
	)
}

// aliasBomb is ten levels of ten aliases each, in values and in Lists.
func aliasBomb() []byte {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: List\na0: &a0 {kind: Service, apiVersion: v1}\n")
	for i := 1; i <= 10; i++ {
		alias := fmt.Sprintf("*a%d, ", i-1)
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(alias, 10), ", "))
	}
	b.WriteString("items: *a10\n")
	return []byte(b.String())
}

// deepNesting is JSON, flow YAML and block YAML of many levels.
func deepNesting() []byte {
	const levels = 100_000
	var block strings.Builder
	for i := range 2000 {
		block.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return []byte("---\n" + strings.Repeat("[", levels) + strings.Repeat("]", levels) +
		"\n---\n" + strings.Repeat(`{"a":`, levels) + "1" + strings.Repeat("}", levels) +
		"\n---\n" + block.String() + "\n---\n" + strings.Repeat("- ", levels) + "1\n")
}

// hugeScalars is a name, an annotation, a number and a key of megabytes.
func hugeScalars() []byte {
	long := strings.Repeat("9", 8<<20)
	return []byte("---\napiVersion: v1\nkind: Service\nmetadata: {name: " + long + "}\n" +
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: huge-note, annotations: {a: x" + long +
		"}}\nspec: {clusterIP: 172.30.9.1, ports: [{port: 80}]}\n" +
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: huge-port}\nspec: {clusterIP: 172.30.9.2, ports: [{port: " +
		long + "}]}\n" +
		"---\napiVersion: v1\nkind: Service\nmetadata: {name: huge-key}\nspec: {x" + long +
		": 1, clusterIP: 172.30.9.3, ports: [{port: 1e400}]}\n")
}

// encoding is a file name, and a function that encodes two Services for that file, given as YAML and as JSON.
type encoding struct {
	file   string
	encode func(yaml, json []string) []byte
}

// encodings are ways to encode a file of several documents.
func encodings() []encoding {
	yamlWith := func(end, document string) func(y, _ []string) []byte {
		return func(y, _ []string) []byte {
			return []byte(strings.ReplaceAll(strings.Join(y, document), "\n", end))
		}
	}
	wide := func(order binary.AppendByteOrder, mark string) func(y, _ []string) []byte {
		return func(y, _ []string) []byte {
			var b []byte
			for _, unit := range utf16.Encode([]rune(mark + strings.Join(y, "---\n"))) {
				b = order.AppendUint16(b, unit)
			}
			return b
		}
	}
	jsonWith := func(between string) func(_, j []string) []byte {
		return func(_, j []string) []byte { return []byte(strings.Join(j, between)) }
	}
	return []encoding{
		{"enc-utf16le.yaml", wide(binary.LittleEndian, "\ufeff")},
		{"enc-utf16be.yaml", wide(binary.BigEndian, "\ufeff")},
		{"enc-utf16le-bare.yaml", wide(binary.LittleEndian, "")},
		{"enc-bom.yaml", func(y, _ []string) []byte { return []byte("\ufeff" + strings.Join(y, "\ufeff---\n")) }},
		{"enc-cr.yaml", yamlWith("\r", "---\n")},
		{"enc-crlf.yaml", yamlWith("\r\n", "---\n")},
		{"enc-nel.yaml", yamlWith("\u0085", "---\n")},
		{"enc-u2028.yaml", yamlWith("\u2028", "---\n")},
		{"enc-dots.yaml", yamlWith("\n", "...\n")},
		{"enc-dots-directive.yml", yamlWith("\n", "...\n%YAML 1.1\n---\n")},
		{"enc-json-dashes.json", jsonWith("\n---\n")},
		{"enc-json-comma.json", jsonWith(",\n")},
		{"enc-json-array.json", func(_, j []string) []byte { return []byte("[" + strings.Join(j, ",") + "]") }},
		{"enc-json-none.json", jsonWith("")},
	}
}

// encodedIPs are the addresses of the two Services of an encoding.
func encodedIPs(i int) [2]string {
	return [2]string{fmt.Sprintf("172.30.10.%d", 2*i+1), fmt.Sprintf("172.30.10.%d", 2*i+2)}
}

func putEncodings(s *attackTest) {
	s.Helper()
	for i, e := range encodings() {
		var yaml, texts []string
		for n, ip := range encodedIPs(i) {
			service := fmt.Sprintf("%s-%d", strings.ReplaceAll(e.file, ".", "-"), n)
			text, err := json.Marshal(harness.Service(service, object{"clusterIP": ip, "ports": []object{{"port": 80}}}))
			s.must(err)
			texts = append(texts, string(text))
			yaml = append(yaml,
				fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\nspec:\n  clusterIP: %s\n  ports:\n"+
					"  - port: 80\n", service, ip))
			// The endpoints are in a valid file.
			slice := harness.EndpointSlice(service, "IPv4", []object{{"port": 80}}, harness.PodAddr(0).String())
			s.write(fmt.Sprintf("hostile-slice-%s.json", service), []object{slice})
		}
		s.must(s.put(e.file, e.encode(yaml, texts)))
	}
}
