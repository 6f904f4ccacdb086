package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Case is a configuration, and the objects for which rules are written with it.
type Case struct {
	Name    string   // of its folder in testdata
	Objects []string // files of testdata/objects
}

// Cases returns all cases.
func Cases() []Case {
	few := []string{"known", "node", "nodeport"}
	all := []string{
		"affinity", "clusterip", "empty", "external", "ignored", "internal-local", "known", "loadbalancer", "node",
		"nodeport", "terminating", "topology",
	}
	cases := []Case{{"cluster-cidr", all}}
	for _, name := range []string{
		"bridge", "interface-prefix", "masquerade-all", "masquerade-bit", "no-detector", "no-localhost-node-ports",
		"node-cidr", "node-port-addresses", "node-port-loopback", "node-port-primary", "tcp-be-liberal",
	} {
		cases = append(cases, Case{name, few})
	}
	return cases
}

// Config returns the path of the configuration file.
func (c Case) Config() string { return filepath.Join("testdata", c.Name, "config.yaml") }

// Documents returns the objects, one YAML document each.
func (c Case) Documents() ([]string, error) {
	var docs []string
	for _, name := range c.Objects {
		text, err := os.ReadFile(filepath.Join("testdata", "objects", name+".yaml"))
		if err != nil {
			return nil, err
		}
		docs = append(docs, strings.Split(string(text), "\n---\n")...)
	}
	return docs, nil
}

// Variant is one of the two variants of iptables.
type Variant struct {
	Name    string // "legacy": iptables-legacy-save
	Program string // multi-call binary
}

// Variants returns both. Their output has the same format.
func Variants() []Variant {
	return []Variant{{"nft", "xtables-nft-multi"}, {"legacy", "xtables-legacy-multi"}}
}

// Families returns the program of each IP family.
func Families() []string { return []string{"iptables", "ip6tables"} }

// Command returns the name of a program of the variant, such as that for "save".
func (v Variant) Command(family, what string) string {
	return strings.Join(slices.DeleteFunc([]string{family, v.Name, what}, func(s string) bool { return s == "" }), "-")
}

// Recording returns the path of the rules that kube-proxy wrote for a family.
func (c Case) Recording(v Variant, family string) string {
	return filepath.Join("testdata", c.Name, v.Command(family, "")+".save")
}

// Recorded returns the rules that kube-proxy wrote for a family.
func (c Case) Recorded(v Variant, family string) (Dump, error) {
	text, err := os.ReadFile(c.Recording(v, family))
	if err != nil {
		return nil, err
	}
	d, err := Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Recording(v, family), err)
	}
	return d, nil
}
