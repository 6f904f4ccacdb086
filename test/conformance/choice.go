//go:build linux

package conformance

import (
	"fmt"
	"maps"
	"slices"
)

// Environment variables that select scenarios.
const (
	fullVar      = "FULL"      // "1": every plane runs all scenarios
	scenariosVar = "SCENARIOS" // "kernel": only the ones of dependOnKernel
)

// selected returns the S-numbers of the scenarios to run with a plane, in an environment; nil: all.
func selected(plane string, getenv func(string) string) ([]int, error) {
	switch value := getenv(scenariosVar); {
	case value == "kernel":
		return numbers(dependOnKernel()), nil
	case value != "":
		return nil, fmt.Errorf("%s is %q, want kernel or nothing", scenariosVar, value)
	case plane == "iptables-legacy" && getenv(fullVar) != "1":
		return append(numbers(dependOnVariant()), coverShapes()...), nil
	}
	return nil, nil
}

// numbers returns all numbers of a list, in order.
func numbers(byReason map[string][]int) []int {
	return slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Values(byReason))...)))
}

// dependOnKernel returns the S-numbers of scenarios whose result another kernel may change, by reason.
func dependOnKernel() map[string][]int {
	return map[string][]int{
		"the kernel chooses backends at random":                         {3},
		"hairpin: a connection to oneself needs source NAT on one path": {2, 306},
		"each protocol has its own lookup and NAT":                      {5, 107},
		"SCTP: NAT, checksums and sockets":                              {309, 310, 311},
		"ICMP echo and errors":                                          {12, 153, 162},
		"fragments and segmentation offload":                            {20},
		"source NAT by the path of the connection":                      {24, 28, 34, 37},
		"bridges":          {53},
		"marks of packets": {56},
		"types of addresses, by the routing table":                        {57, 85},
		"route_localnet, martians and loopback addresses":                 {62, 65, 67, 71},
		"sockets of the node on the same port":                            {76},
		"intervals in sets":                                               {82},
		"packets that are dropped":                                        {10, 126},
		"traffic of other nodes, with asymmetric paths":                   {113},
		"hooks of other firewalls":                                        {122, 279},
		"connections outlive their rules":                                 {152},
		"affinity in the kernel: elements with timeouts":                  {184, 185, 189, 195},
		"conntrack: listing, deletion and late entries":                   {197, 201, 205, 210, 211},
		"conntrack: packets that are invalid":                             {214},
		"reading back what an earlier run wrote":                          {273, 274, 282},
		"reports of edits, and repairs":                                   {277},
		"changes that the kernel rejects":                                 {278},
		"locks of other programs":                                         {280},
		"rules of two modes at once":                                      {281},
		"a family that the host lacks, and changes of families":           {301, 302},
		"maps and sets that change their type or are deleted and created": {230},
	}
}

// dependOnVariant returns the S-numbers of scenarios whose result depends on the variant of iptables, by reason. With
// iptables-legacy the others are run by FULL=1 only: iptables-nft runs them with the same chains, and test/rules
// compares whole dumps of both.
func dependOnVariant() map[string][]int {
	return map[string][]int{
		"modules of x_tables choose, remember and match": {3, 54, 56, 181, 184, 185, 189, 191, 194, 252},
		"reading back what an earlier run wrote":         {195, 273, 274},
		"edits are polled, and whole tables replaced":    {211, 226, 233, 277, 278, 282},
		"hooks of other firewalls":                       {122, 279},
		"rules that are added, changed and removed":      {73, 104, 219, 225, 230, 302, 312},
		"hooks in the order of NAT and conntrack":        {5, 20, 62, 64, 197, 205, 210},
		"the xtables lock":                               {280},
		"rules of two modes at once":                     {281},
		"packets that are invalid":                       {214},
		"a family that the host lacks":                   {301},
	}
}

// coverShapes returns the S-numbers of scenarios that, together with dependOnVariant, have every shape of rules that
// any scenario begins with. After a change TestShapes prints the shapes that are missing, and numbers that cover them.
func coverShapes() []int { return []int{49, 53, 110, 157, 183} }
