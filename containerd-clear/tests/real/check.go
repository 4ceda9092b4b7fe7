// Go's own consistency check of a bolt file: the pages of every bucket, the freelist, and
// a walk over all keys. Prints the number of errors and keys; exits 1 if there is an error.
package main

import (
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"
)

func main() {
	db, err := bolt.Open(os.Args[1], 0o600, &bolt.Options{ReadOnly: false})
	if err != nil {
		fmt.Println("open:", err)
		os.Exit(1)
	}
	errors, keys := 0, 0
	err = db.View(func(tx *bolt.Tx) error {
		for e := range tx.Check() {
			fmt.Println("check:", e)
			errors++
		}
		var walk func(b *bolt.Bucket) error
		walk = func(b *bolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				keys++
				if v == nil {
					return walk(b.Bucket(k))
				}
				return nil
			})
		}
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return walk(b) })
	})
	if err != nil {
		fmt.Println("walk:", err)
		errors++
	}
	db.Close()
	fmt.Printf("%d errors, %d keys\n", errors, keys)
	if errors > 0 {
		os.Exit(1)
	}
}
