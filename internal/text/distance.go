package text

// Distance returns the number of letters to insert, delete or replace to turn one word into another.
func Distance(a, b string) int {
	row := make([]int, len(b)+1) // the distances of the part of a so far to each start of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// Nearest returns the candidate with the smallest Distance to a word, the first of
// several; empty if none is near enough to be the same word misspelled.
func Nearest(word string, candidates []string) string {
	nearest, fewest := "", min(len(word)/3, 3)+1
	for _, c := range candidates {
		if n := Distance(word, c); n < fewest {
			nearest, fewest = c, n
		}
	}
	return nearest
}
